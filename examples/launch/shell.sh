#!/bin/sh
# Two processes on one machine: four GPUs each. On two machines, run one line on each, with the first one's name.
set -e
RUN="diffeqformer train diffeqformer-gpt-small --run runs/small --mesh.data -1"
OTHERS="--distributed.coordinator localhost:45871 --distributed.processes 2"

CUDA_VISIBLE_DEVICES=4,5,6,7 $RUN $OTHERS --distributed.process 1 &
CUDA_VISIBLE_DEVICES=0,1,2,3 $RUN $OTHERS --distributed.process 0
wait
