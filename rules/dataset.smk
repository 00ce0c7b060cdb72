localrules:
    dataset_gate,


rule dataset:
    input:
        completions=rules.merge.output.completions,
        audit=rules.audit_rows.output.report,
        code=code("dataset"),
    output:
        directory(f"{OUT}/dataset"),
    log:
        f"{OUT}/logs/dataset.log",
    benchmark:
        f"{OUT}/logs/dataset.benchmark.tsv"
    localrule: RUN.small
    params:
        run=RUN.file,
        data=RUN.params["dataset"],
    shell:
        """
        stage dataset \
            --run {params.run:q} \
            --completions {input.completions:q} \
            --audit {input.audit:q} \
            --output {output:q} \
            2>&1 | tee -i {log:q}
        """


rule dataset_gate:
    input:
        dataset=rules.dataset.output,
        code=code("gate"),
    output:
        f"{OUT}/gates/dataset.ok",
    log:
        f"{OUT}/logs/dataset_gate.log",
    params:
        run=RUN.file,
    shell:
        """
        stage gate dataset \
            --run {params.run:q} \
            --evidence {input.dataset:q}/stats.json \
            --output {output:q} \
            2>&1 | tee -i {log:q}
        """
