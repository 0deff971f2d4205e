"""A DataFrame in, a DataFrame out: training and predicting in a script or a notebook.

    python examples/dataframe.py

Run it again: the training is finished, so it only predicts.
"""

from sklearn.datasets import load_diabetes

import elasticdl

patients = load_diabetes(as_frame=True, scaled=False).frame
known, new = patients[:400], patients[400:].drop(columns="target")

if __name__ == "__main__":
    outcome = elasticdl.train(
        model_def="regressor.DNN",
        params={"label": "target", "hidden_units": [32, 16], "learning_rate": 0.01},
        data=known,
        validation_split=0.2,
        num_epochs=15,
        output="demo/dataframe_model",
    )
    print(f"error on patients held out: {outcome.metrics['val_mean_absolute_error']:.0f}")

    model = elasticdl.load("demo/dataframe_model")
    print(new.assign(predicted=model.predict(new).ravel())[["age", "bmi", "predicted"]].head())
