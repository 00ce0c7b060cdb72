localrules:
    audit,
    audit_gate,


rule audit_rows:
    input:
        data=RUN.inputs,
        code=code("audit"),
    output:
        report=f"{OUT}/audit/report.json",
        rows=f"{OUT}/audit/rows.parquet",
        rejected=f"{OUT}/audit/rejected.jsonl",
    log:
        f"{OUT}/logs/audit.log",
    benchmark:
        f"{OUT}/logs/audit.benchmark.tsv"
    localrule: RUN.small
    threads: RUN.cores
    params:
        run=RUN.file,
        data=RUN.params["audit"],
    shell:
        """
        stage audit \
            --run {params.run:q} \
            --report {output.report:q} \
            --rows {output.rows:q} \
            --rejected {output.rejected:q} \
            --processes {threads} \
            2>&1 | tee -i {log:q}
        """


# What `snakemake audit` asks for. A rule of its own: an edit of the page draws it again, and reads no
# row again.
rule audit:
    input:
        report=rules.audit_rows.output.report,
        code=code("audit.page"),
    output:
        f"{OUT}/audit/report.html",
    log:
        f"{OUT}/logs/audit_page.log",
    shell:
        """
        stage audit.page \
            --report {input.report:q} \
            --output {output:q} \
            2>&1 | tee -i {log:q}
        """


rule audit_gate:
    input:
        evidence=rules.audit_rows.output.report,
        code=code("gate"),
    output:
        f"{OUT}/gates/audit.ok",
    log:
        f"{OUT}/logs/audit_gate.log",
    params:
        run=RUN.file,
        data=RUN.params["audit_gate"],
    shell:
        """
        stage gate audit \
            --run {params.run:q} \
            --evidence {input.evidence:q} \
            --output {output:q} \
            2>&1 | tee -i {log:q}
        """
