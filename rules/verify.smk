localrules:
    verify_gate,


rule verify:
    input:
        data=INPUT_FILES,
        rows=rules.audit.output.rows,
        rejected=rules.audit.output.rejected,
        kept=rules.shard.output.kept,
        shards=rules.shard.output.shards,
        generated=rules.merge.input.shards,
        completions=rules.merge.output.completions,
        failed=rules.merge.output.failed,
        dataset=rules.dataset.output,
        code=code("verify"),
    output:
        f"{OUT}/verify.json",
    params:
        data=RUN.params["verify"],
    log:
        f"{OUT}/logs/verify.log",
    benchmark:
        f"{OUT}/logs/verify.benchmark.tsv"
    shell:
        """
        {PYTHON} workflow_scripts.verify \
            --config {CONFIG:q} \
            --run-hash {RUN.hash} \
            --output {output:q} \
            2>&1 | tee -i {log:q}
        """


rule verify_gate:
    input:
        evidence=rules.verify.output,
        code=code("gate"),
    output:
        f"{OUT}/gates/verify.ok",
    log:
        f"{OUT}/logs/verify_gate.log",
    shell:
        """
        {PYTHON} workflow_scripts.gate verify \
            --config {CONFIG:q} \
            --evidence {input.evidence:q} \
            --output {output:q} \
            2>&1 | tee -i {log:q}
        """
