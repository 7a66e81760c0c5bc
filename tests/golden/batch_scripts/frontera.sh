#!/bin/bash

#SBATCH --job-name=parsl.htex.block-0
#SBATCH --output=/RUN/submit_scripts/parsl.htex.block-0.stdout
#SBATCH --error=/RUN/submit_scripts/parsl.htex.block-0.stderr
#SBATCH --nodes=1
#SBATCH --time=240
#SBATCH --ntasks-per-node=1
#SBATCH --no-requeue
#SBATCH --signal=USR2@120
#SBATCH --exclusive
#SBATCH --partition=small
#SBATCH --account=abc123


export CKPTFLOW_STOP_SIGNALS=TERM,USR2
export CKPTFLOW_ENDS_AT=$(( $(date +%s) + 14400 ))
trap '' USR1 USR2 TERM



export JOBNAME="parsl.htex.block-0"

set -e
export CORES=$SLURM_CPUS_ON_NODE
export NODES=$SLURM_JOB_NUM_NODES

[[ "1" == "1" ]] && echo "Found cores : $CORES"
[[ "1" == "1" ]] && echo "Found nodes : $NODES"
WORKERCOUNT=1
SCRIPT_DIR="/RUN/submit_scripts"
[[ -d $SCRIPT_DIR ]] || SCRIPT_DIR=""

cat << SLURM_EOF > ${SCRIPT_DIR:+$SCRIPT_DIR/}cmd_$SLURM_JOB_NAME.sh
WORKERS
SLURM_EOF
chmod a+x ${SCRIPT_DIR:+$SCRIPT_DIR/}cmd_$SLURM_JOB_NAME.sh

srun --ntasks 1 -l --cpu-bind=none bash ${SCRIPT_DIR:+$SCRIPT_DIR/}cmd_$SLURM_JOB_NAME.sh

[[ "1" == "1" ]] && echo "Done"

