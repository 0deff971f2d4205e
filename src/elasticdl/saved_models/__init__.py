"""Models that exist only as files: what a file says of itself, what may be run of it, loading it.

    path --look--> ModelFile --check--> nothing of it runs unasked --load--> model, not compiled
                       |                                                       |
                       +--- training_config, or a person's options ---> optimizer, loss, metrics

model_file.py        what a file says of itself, by its content; the loader is chosen by that
scan.py              what in a file would run, found before any loader sees it
trust.py             a person's word that one file, by its digest, may run what is in it
built_in.py          the names that need no declaration: layers, TensorFlow operations
archive.py           zip archives and pickles, looked at without unpickling
saved_model.py       the protobuf messages of a SavedModel folder
keras.py             loads what Keras 3 wrote
tf_keras.py          loads what Keras 1 and 2 wrote, as a model of Keras 3
torch.py             loads what PyTorch wrote
compile_options.py   optimizer, loss and metrics from their names, or from old configs

Frameworks are imported in the three files named after them and in compile_options.py only.

Callers: `dialects/`.
"""
