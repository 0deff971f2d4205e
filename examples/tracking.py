"""Two trainings in MLflow, compared; the same ones in TensorBoard.

    elasticdl data sample digits --output=demo/data
    python examples/tracking.py

MLflow's own pages (`pip install mlflow`, in another environment):
`mlflow ui --backend-store-uri sqlite:///demo/mlflow.db`. The curves:
`tensorboard --logdir demo`.
"""

from pathlib import Path

from mlflow import MlflowClient

import elasticdl

if __name__ == "__main__":
    Path("demo").mkdir(exist_ok=True)
    for rate in (0.0003, 0.003):
        elasticdl.train(
            model_def="mnist",
            params={"learning_rate": rate},
            data="demo/data/train",
            validation_data="demo/data/test",
            num_epochs=2,
            output=f"demo/tracked_{rate}",
            tracking_uri="demo/mlflow.db",
            experiment="digits",
            tensorboard=True,
        )

    mlflow = MlflowClient("sqlite:///demo/mlflow.db")
    experiment = mlflow.get_experiment_by_name("digits")
    for run in mlflow.search_runs(experiment.experiment_id, order_by=["metrics.val_loss"]):
        print(run.info.run_name, run.data.params["params.learning_rate"], run.data.metrics)
