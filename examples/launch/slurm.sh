#!/bin/bash
# sbatch examples/launch/slurm.sh: two nodes of eight GPUs, a process for each GPU.
# Requeued after preemption, the same command goes on from the last checkpoint.
#SBATCH --job-name=diffeqformer
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@60
#SBATCH --requeue

# The run folder and the token cache lie on a disk that all nodes see.
srun diffeqformer train diffeqformer-gpt-medium \
    --run "$SLURM_SUBMIT_DIR/runs/medium" --data.cache "$SLURM_SUBMIT_DIR/cache" \
    --mesh.data 2 --mesh.fsdp 8 --distributed.coordinator auto
