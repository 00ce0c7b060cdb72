rule shard:
    input:
        rows=rules.audit_rows.output.rows,
        gate=rules.audit_gate.output,
        code=code("shard"),
    output:
        manifest=f"{OUT}/shards/manifest.json",
        kept=f"{OUT}/shards/kept.parquet",
        # the shards' files themselves only where they are gone: Snakemake compares each file that it
        # looks up with each output of a rule, which takes long with thousands of both
        gone=[f"{OUT}/{name}" for name in RUN.gone_rows],
    log:
        f"{OUT}/logs/shard.log",
    benchmark:
        f"{OUT}/logs/shard.benchmark.tsv"
    localrule: RUN.small
    params:
        run=RUN.file,
        data=RUN.params["shard"],
        folder=subpath(output.manifest, parent=True),
    shell:
        """
        stage shard \
            --run {params.run:q} \
            --rows {input.rows:q} \
            --output {params.folder:q} \
            2>&1 | tee -i {log:q}
        """
