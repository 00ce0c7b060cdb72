rule merge:
    input:
        shards=expand(rules.generate.output, shard=RUN.shards),
        # a path: where a rule names another's output, Snakemake hashes each list whole once for each
        # of its files, which takes longer than all else with thousands of shards
        kept=f"{OUT}/shards/kept.parquet",
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
