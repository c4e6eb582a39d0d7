#!/bin/sh
# An experiment of one's own on the command line: looked at beforehand, interrupted, gone on with, reported, exported.
#
#     sh examples/sweep.sh            # LeNet-300-100 on MNIST, about a minute on two cores
#     sh examples/sweep.sh --quick    # on made-up pictures, half of that
#
# All that is written goes to the folder walk.
set -eu

if [ "${1:-}" = --quick ]; then
    set -- data=synthetic batch_size=200 epochs=2
fi
mkdir -p walk
cd walk

cat >mine.toml <<'TOML'
epochs = 4
optimizer.lr = 0.05

[[runs]]
method = "Dense"

[[runs]]
method = "Static"
sparsity = 0.98

[[runs]]
method = "DSR"
sparsity = 0.98
TOML

# What are the fields of a method, and what would a run of it be?
regrow methods DSR
regrow train --method DSR --sparsity 0.98 "$@" optimizer.lr=0.05 --dry-run

# Which runs are there, how long does each train, how long does it take?
regrow sweep mine.toml "$@" --dry-run

# Ctrl-C saves what is being trained and stops; here, with nobody at the keys, a signal does.
regrow sweep mine.toml "$@" &
sweep=$!
until ls runs/*/metrics.csv >/dev/null 2>&1; do
    kill -0 "$sweep"
    sleep 0.1
done
kill -INT "$sweep"
wait "$sweep" || echo "exit code $?"

# By now there are runs to go by.
regrow sweep mine.toml "$@" --dry-run

# The same command goes on where it was, now with two runs at a time. What is finished is not done again.
regrow sweep mine.toml "$@" --jobs 2

# One run, by a part of its id; all of them as a page, with figures and tables; one for other programs.
regrow show dsr
regrow report runs --out report
regrow export runs/*-dsr-* dsr.pt
