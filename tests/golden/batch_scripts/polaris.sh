#!/bin/bash

#PBS -S /bin/bash
#PBS -N parsl.htex.block-0
#PBS -m n
#PBS -l walltime=06:00:00
#PBS -l select=1:ncpus=64:ngpus=4
#PBS -o /RUN/submit_scripts/parsl.htex.block-0.stdout
#PBS -e /RUN/submit_scripts/parsl.htex.block-0.stderr
#PBS -r n
#PBS -A abc123
#PBS -q preemptable
#PBS -l filesystems=home:eagle

cd "$PBS_O_WORKDIR"
export CKPTFLOW_STOP_SIGNALS=TERM,USR1,USR2
export CKPTFLOW_ENDS_AT=$(( $(date +%s) + 21600 ))
trap '' USR1 USR2 TERM


export JOBNAME="parsl.htex.block-0"

set -e
export CORES=$(getconf _NPROCESSORS_ONLN)
[[ "1" == "1" ]] && echo "Found cores : $CORES"
WORKERCOUNT=1
SCRIPT_DIR="/RUN/submit_scripts"
[[ -d $SCRIPT_DIR ]] || SCRIPT_DIR=""

# Deduplicate the nodefile
HOSTFILE="${SCRIPT_DIR:+$SCRIPT_DIR/}$JOBNAME.nodes"
if [ -z "$PBS_NODEFILE" ]; then
    echo "localhost" > $HOSTFILE
else
    sort -u $PBS_NODEFILE > $HOSTFILE
fi

cat << MPIEXEC_EOF > ${SCRIPT_DIR:+$SCRIPT_DIR/}cmd_$JOBNAME.sh
WORKERS
MPIEXEC_EOF
chmod u+x ${SCRIPT_DIR:+$SCRIPT_DIR/}cmd_$JOBNAME.sh

mpiexec --cpu-bind none --depth=64 --ppn 1 -n $WORKERCOUNT --hostfile $HOSTFILE /usr/bin/sh ${SCRIPT_DIR:+$SCRIPT_DIR/}cmd_$JOBNAME.sh

[[ "1" == "1" ]] && echo "All workers done"


