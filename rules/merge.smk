rule merge:
    input:
        shards=expand(rules.generate.output.rows, shard=RUN.shards),
        counts=expand(rules.generate.output.counts, shard=RUN.shards),
        kept=rules.shard.output.kept,
        code=code("merge"),
    output:
        completions=f"{OUT}/merged/completions.parquet",
        failed=f"{OUT}/merged/failed.parquet",
    log:
        f"{OUT}/logs/merge.log",
    benchmark:
        f"{OUT}/logs/merge.benchmark.tsv"
    localrule: RUN.small
    params:
        run=RUN.file,
        data=RUN.params["merge"],
    shell:
        """
        stage merge \
            --run {params.run:q} \
            --kept {input.kept:q} \
            --completions {output.completions:q} \
            --failed {output.failed:q} \
            2>&1 | tee -i {log:q}
        """
