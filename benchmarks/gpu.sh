#!/bin/sh
# What only a GPU can do within minutes: `ATS_DATA=… benchmarks/gpu.sh FOLDER [seconds]`.
# Run again with the same folder it goes on where it stopped; `gpu.tar` in it is what to take away.
set -eu
folder=${1:?the folder for the results}
cd "$(dirname "$0")/.."
exec timeout "$((${2:-480} + 50))" env PYTHONPATH="$PWD" PYTHONUNBUFFERED=1 python3 benchmarks/gpu.py "$folder" --budget "${2:-480}"
