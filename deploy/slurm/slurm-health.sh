#!/bin/sh
# HealthCheckProgram of slurm.conf for `tocsin slurm-health`, in place of healthcheck.sh: the same look, with a bound on
# how many nodes may be out of service at once. slurmd starts it with next to no environment and gives it no arguments.
here=$(dirname "$0")
TOCSIN=/opt/tocsin/bin/tocsin
CONFIG=/etc/tocsin/tocsin.toml
# shellcheck source=tocsin-slurm.conf
[ ! -r "$here/tocsin-slurm.conf" ] || . "$here/tocsin-slurm.conf"
# Its line goes to the node's log: slurmd keeps none.
"$TOCSIN" --config "$CONFIG" slurm-health 2>&1 | logger -t tocsin-slurm-health
exit 0
