localrules:
    dataset_gate,


rule dataset:
    input:
        completions=rules.merge.output.completions,
        code=code("dataset"),
    output:
        directory(f"{OUT}/dataset"),
    params:
        data=RUN.params["dataset"],
        identity=RUN.identity_json,
    log:
        f"{OUT}/logs/dataset.log",
    benchmark:
        f"{OUT}/logs/dataset.benchmark.tsv"
    shell:
        """
        {PYTHON} workflow_scripts.dataset \
            --config {CONFIG:q} \
            --identity {params.identity:q} \
            --completions {input.completions:q} \
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
    shell:
        """
        {PYTHON} workflow_scripts.gate dataset \
            --config {CONFIG:q} \
            --evidence {input.dataset}/stats.json \
            --output {output:q} \
            2>&1 | tee -i {log:q}
        """
