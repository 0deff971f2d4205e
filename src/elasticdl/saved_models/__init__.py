"""Saved models: inspects a model file, checks what it would run, and loads it.

    path --identify--> ModelFile --scan--> runs no untrusted code --load--> model, not compiled
                           |                                                   |
                           +-- training_config, or the user's options --> optimizer, loss, metrics

file_format.py        recognises a file by its content; this determines the loader
scan.py              finds code that a file would run, before any loader opens it
trust.py             the user's permission that one file, by its digest, may run its code
built_in.py          layers and operations that a file may use without being declared
archive.py           zip archives and pickles, read without unpickling
saved_model.py       the protobuf messages of a SavedModel folder
keras.py             loads files of Keras 3
tf_keras.py          loads files of Keras 1 and 2, as Keras 3 models
torch.py             loads files of PyTorch
compile_options.py   optimizer, loss and metrics from their names, or from old configs

Frameworks are imported in the three files named after them and in compile_options.py only.

Callers: `dialects/`.
"""
