"""Tracemill: audit a dataset's responses and regenerate them. `snakemake --cores 7`."""

import gc
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.utils import min_version

min_version("9.0")
# Thousands of jobs are millions of objects that live as long as the process: looking through them
# for garbage again and again is a seventh of the time.
gc.freeze()
gc.set_threshold(50_000, 20, 100)
sys.path.insert(0, workflow.basedir)

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.config.load import load
from workflow_scripts.workflow.code import code, code_digest
from workflow_scripts.workflow.damage import mend
from workflow_scripts.workflow.run import Run
from workflow_scripts.workflow.shell import stage_function

# The demo's configuration, only if none is named: its keys must not fill another one's gaps.
if not workflow.config_settings.configfiles:

    configfile: "config/config.yaml"


try:
    RUN = Run(load(config), workflow)
except ConfigError as error:
    raise WorkflowError(str(error))

OUT = RUN.out
shell.prefix(stage_function(workflow.basedir, RUN.note))
RUN.limit()
mend(workflow, Path(OUT), Path(OUT) / "generate" / RUN.hash)


localrules:
    all,
    retry_failed,


rule all:
    input:
        RUN.results(),


rule retry_failed:
    input:
        rules.all.input,


for stage in ("audit", "shard", "generate", "merge", "dataset", "verify", "report"):

    include: f"rules/{stage}.smk"


onstart:
    try:
        RUN.start()
    except ConfigError as error:
        raise WorkflowError(str(error))


onsuccess:
    RUN.stop()


onerror:
    RUN.stop()
