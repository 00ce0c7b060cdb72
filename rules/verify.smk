localrules:
    verify_gate,


rule verify:
    input:
        data=RUN.inputs,
        rows=rules.audit_rows.output.rows,
        rejected=rules.audit_rows.output.rejected,
        kept=rules.shard.output.kept,
        completions=rules.merge.output.completions,
        failed=rules.merge.output.failed,
        dataset=rules.dataset.output,
        code=code("verify"),
    output:
        f"{OUT}/verify.json",
    log:
        f"{OUT}/logs/verify.log",
    benchmark:
        f"{OUT}/logs/verify.benchmark.tsv"
    localrule: RUN.small
    params:
        run=RUN.file,
        data=RUN.params["verify"],
    shell:
        """
        stage verify \
            --run {params.run:q} \
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
    params:
        run=RUN.file,
    shell:
        """
        stage gate verify \
            --run {params.run:q} \
            --evidence {input.evidence:q} \
            --output {output:q} \
            2>&1 | tee -i {log:q}
        """
