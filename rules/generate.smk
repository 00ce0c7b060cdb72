rule generate:
    input:
        rows=f"{OUT}/shards/shard-{{shard}}.parquet",
    output:
        rows=f"{OUT}/generate/{RUN.hash}/shard-{{shard}}.parquet",
        counts=f"{OUT}/generate/{RUN.hash}/shard-{{shard}}.json",
    log:
        f"{OUT}/logs/generate/shard-{{shard}}.log",
    benchmark:
        f"{OUT}/logs/generate/shard-{{shard}}.benchmark.tsv"
    wildcard_constraints:
        shard=r"\d{4}",
    threads: RUN.threads()
    resources:
        place=1,
        gpu=RUN.gpu,
    params:
        run=RUN.file,
        data=RUN.params["generate"],
        # a digest, not the files as elsewhere: Snakemake looks at every input of every waiting job
        # whenever one ends, and there may be thousands
        code=code_digest("generate"),
        folder=subpath(output.rows, parent=True),
        retry=RUN.retry_round,
        # no input: it changes with every shard count and input, and only progress reads it
        manifest=rules.shard.output.manifest,
    shell:
        """
        stage generate \
            --run {params.run:q} \
            --shard {wildcards.shard} \
            --input {input.rows:q} \
            --manifest {params.manifest:q} \
            --output {params.folder:q} \
            2>&1 | tee -i {log:q}
        """
