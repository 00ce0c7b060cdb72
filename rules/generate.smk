rule generate:
    input:
        f"{OUT}/shards/manifest.json",
    output:
        # shard-<k>.json, the counts and checksum, is written with it, and not declared: Snakemake's
        # time and the files in .snakemake/metadata grow with each output
        f"{OUT}/generate/{RUN.hash}/shard-{{shard}}.parquet",
    log:
        f"{OUT}/logs/generate/shard-{{shard}}.log",
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
        retry=RUN.retry_rounds(),
    shell:
        """
        stage generate \
            --run {params.run:q} \
            --shard {wildcards.shard} \
            --manifest {input:q} \
            --output {output:q} \
            2>&1 | tee -i {log:q}
        """
