#!/bin/sh
# A Cloud TPU slice: the same command on all of its hosts. NAME and ZONE are the slice's.
# /mnt/shared is a file system that all hosts have mounted (Filestore, or a bucket by Cloud Storage FUSE).
set -e
gcloud compute tpus tpu-vm ssh "$NAME" --zone "$ZONE" --worker=all --command "
    diffeqformer train diffeqformer-llama-1b --run /mnt/shared/runs/llama --data.cache /mnt/shared/cache \
        --mesh.fsdp -1 --model.compute-dtype bfloat16 --distributed.coordinator auto"
