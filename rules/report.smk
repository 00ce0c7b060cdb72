localrules:
    report,


rule report:
    input:
        audit=rules.audit_rows.output.report,
        rows=rules.audit_rows.output.rows,
        manifest=rules.shard.output.manifest,
        completions=rules.merge.output.completions,
        failed=rules.merge.output.failed,
        dataset=rules.dataset.output,
        verify=rules.verify.output,
        code=code("report"),
    output:
        f"{OUT}/report.html",
    log:
        f"{OUT}/logs/report.log",
    benchmark:
        f"{OUT}/logs/report.benchmark.tsv"
    params:
        run=RUN.file,
        data=RUN.params["report"],
    shell:
        """
        stage report \
            --run {params.run:q} \
            --output {output:q} \
            2>&1 | tee -i {log:q}
        """
