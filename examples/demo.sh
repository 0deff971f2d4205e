#!/usr/bin/env bash
# `make demo`: handwritten digits from data to predictions, by the commands a user would type.
# A second run finds the training finished and is quick. Everything lies in demo/.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${BIN:-.venv/bin}
model=demo/mnist

step() { printf '\n\033[1m%s\033[0m\n' "$*"; }
elasticdl() {
  printf '$ elasticdl'
  printf ' %q' "$@"
  printf '\n'
  "$bin/elasticdl" "$@"
}

step '1. Data: 1,797 handwritten digits, as RecordIO files'
if [ -d demo/data/test ]; then
  echo 'They are in demo/data already.'
else
  elasticdl data sample digits --output=demo/data
fi

step '2. Train the model file examples/mnist_functional_api.py'
elasticdl train --model_zoo=examples --model_def=mnist_functional_api \
  --data=demo/data/train --validation_data=demo/data/test --num_epochs=6 --output=$model

step '3. Evaluate it on digits it has not seen'
elasticdl evaluate --trained_model=$model --data=demo/data/test

step '4. Predict; nothing but the trained model is needed'
elasticdl predict --trained_model=$model --data=demo/data/test --output=demo/predicted.recordio
elasticdl data show demo/predicted.recordio --limit=3

"$bin/python" - $model/evaluation.json <<'PYTHON'
import json
import sys

accuracy = json.load(open(sys.argv[1]))["metrics"]["accuracy"]
print(f"\nThe model is right on {accuracy:.1%} of the test digits.")
sys.exit(accuracy < 0.95)
PYTHON

step 'What to try next'
cat <<TEXT
  source .venv/bin/activate
  elasticdl train --model_zoo=examples --model_def=mnist_functional_api \\
      --data=demo/data/train --num_epochs=20 --output=demo/longer
          press Ctrl-C or kill it, and run the same command: it resumes
  elasticdl zoo list              models that train without writing anything
  elasticdl zoo init my_zoo       a model file to make your own
  docs/start/first-steps.md             the same in words
TEXT
