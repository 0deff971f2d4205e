"""Hashes of rows depend on the values, and not on how Arrow stores them."""

import pyarrow as pa
import pytest

from elasticdl.data.row_hash import row_hashes


@pytest.mark.parametrize(
    "kind",
    [
        pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view(),
        pa.dictionary(pa.int32(), pa.large_string()),
    ],
    ids=str,
)  # fmt: skip
def test_text_has_the_same_hash_in_every_string_type(kind):
    texts = pa.array(["a", None, "Zürich", "", "a"])
    if pa.types.is_dictionary(kind):
        stored = texts.cast(pa.large_string()).dictionary_encode()
    else:
        stored = texts.cast(kind)

    hashes = row_hashes(pa.record_batch({"x": stored}))

    assert hashes.tolist() == row_hashes(pa.record_batch({"x": texts})).tolist()
    assert len(set(hashes.tolist())) == 4
