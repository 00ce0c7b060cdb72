rule report:
    input:
        audit=rules.audit.output.report,
        rejected=rules.audit.output.rejected,
        manifest=rules.shard.output.manifest,
        counts=rules.merge.input.counts,
        completions=rules.merge.output.completions,
        failed=rules.merge.output.failed,
        dataset=rules.dataset.output,
        verify=rules.verify.output,
        code=code("report") + [f"{workflow.basedir}/workflow_scripts/report.html.j2"],
    output:
        f"{OUT}/report.html",
    params:
        data=RUN.params["report"],
        identity=RUN.identity_json,
    log:
        f"{OUT}/logs/report.log",
    benchmark:
        f"{OUT}/logs/report.benchmark.tsv"
    shell:
        """
        {PYTHON} workflow_scripts.report \
            --config {CONFIG:q} \
            --identity {params.identity:q} \
            --output {output:q} \
            2>&1 | tee -i {log:q}
        """
