"""Headers from strangers: what the library reads of an honest file, and one typed refusal of any other."""

import json
import os
import struct
import time
import tracemalloc
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFEndian, GGUFReader, GGUFWriter
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from spectune.checkpoints.facts import model_facts
from spectune.checkpoints.files import UnreadableError, json_object
from spectune.checkpoints.gguf import gguf_header
from spectune.checkpoints.size import ModelSize, model_size
from spectune.errors import ConfigError

HUGE = (1 << 20, 1 << 32, (1 << 63) - 1, (1 << 64) - 1)
CONFIG = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 3, "vocab_size": 50}
TENSORS = {"a": {"dtype": "F32", "shape": [5, 2], "data_offsets": [0, 40]}}
on_one_file = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write_gguf(path: Path, endianess: GGUFEndian = GGUFEndian.LITTLE) -> bytes:
    writer = GGUFWriter(path, "llama", endianess=endianess)
    writer.add_context_length(64)
    writer.add_block_count(3)
    writer.add_embedding_length(16)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"w{i}" for i in range(9)])
    writer.add_token_scores([0.5] * 9)
    writer.add_add_bos_token(True)
    for add, value in (
        (writer.add_uint8, 200), (writer.add_int8, -3), (writer.add_uint16, 60_000), (writer.add_int16, -300),
        (writer.add_int32, -70_000), (writer.add_float32, 0.25), (writer.add_uint64, 1 << 40),
        (writer.add_int64, -(1 << 40)), (writer.add_float64, 1e-9),
    ):  # fmt: skip
        add(f"x.{add.__name__}", value)
    writer.add_tensor("embedding", np.ones((9, 32), np.float32))
    blocks = np.zeros((4, 34), np.uint8)  # of 32 weights each
    writer.add_tensor("packed", blocks, raw_dtype=GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


@contextmanager
def small_and_quick():
    tracemalloc.start()
    began = time.process_time()
    yield
    assert time.process_time() - began < 2
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()


def refused(path: Path) -> None:
    """By each of those who read headers."""
    with pytest.raises(UnreadableError):
        gguf_header(path)
    with pytest.raises(ConfigError, match="cannot be read as GGUF"):
        model_facts(str(path))
    assert model_size(path) is None


def in_the_library_s_words(value: object) -> object:
    if not isinstance(value, tuple):
        return value
    return [part.decode() if isinstance(part, bytes) else part for part in value]


@pytest.mark.parametrize("endianess", list(GGUFEndian))
def test_fields_and_weights_are_those_that_the_library_reads(tmp_path, endianess) -> None:
    write_gguf(tmp_path / "m.gguf", endianess)
    header, reader = gguf_header(tmp_path / "m.gguf"), GGUFReader(tmp_path / "m.gguf")
    names = [name for name in reader.fields if not name.startswith("GGUF.")]
    assert list(header.fields) == names
    for name in names:
        assert in_the_library_s_words(header.fields[name]) == reader.get_field(name).contents()
    assert header.parameters == sum(tensor.n_elements for tensor in reader.tensors) == 9 * 32 + 4 * 32
    assert model_size(tmp_path / "m.gguf") == ModelSize(
        parameters=416, stored_bytes=4 * 416, vocab_size=9, cached_values=2 * 3 * 1 * 8
    )


def test_a_file_cut_anywhere_is_refused(tmp_path) -> None:
    whole, path = write_gguf(tmp_path / "m.gguf"), tmp_path / "cut.gguf"
    for length in range(len(whole) - 31):  # the writer fills up what follows the last tensor
        path.write_bytes(whole[:length])
        with pytest.raises(UnreadableError):
            gguf_header(path)
    refused(path)


@pytest.mark.parametrize("huge", HUGE)
def test_counts_that_are_huge_are_refused_at_once(tmp_path, huge) -> None:
    whole, path = write_gguf(tmp_path / "m.gguf"), tmp_path / "huge.gguf"
    list_at = whole.index(b"tokenizer.ggml.tokens") + len(b"tokenizer.ggml.tokens") + 8
    with small_and_quick():
        for place in (8, 16, 24, list_at, list_at + 8):  # tensors, fields, the first name, tokens, the first token
            path.write_bytes(whole[:place] + struct.pack("<Q", huge) + whole[place + 8 :])
            with path.open("r+b") as file:
                file.truncate(1 << 36)  # all that it promises may be there, for a file may have holes
            refused(path)


@pytest.mark.parametrize(("kind", "item_bytes"), [(0, 1), (6, 4), (8, 8)])  # small numbers, numbers, empty texts
def test_arrays_may_not_grow_beyond_bounds_together(tmp_path, kind, item_bytes) -> None:
    path, items = tmp_path / "m.gguf", 3 << 20
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, 2))
        for name in (b"a", b"b"):
            file.write(struct.pack("<Q1sIIQ", 1, name, 9, kind, items))
            file.seek(items * item_bytes, os.SEEK_CUR)
        file.truncate()
    with pytest.raises(UnreadableError, match="counts 3,145,728"):
        gguf_header(path)


def test_arrays_of_arrays_are_refused(tmp_path) -> None:
    (tmp_path / "m.gguf").write_bytes(
        b"GGUF" + struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"a", 9) + bytes([9, 0, 0, 0]) * 999
    )
    refused(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    "fields",
    [
        {"general.architecture": 7},
        {"tokenizer.ggml.tokens": [1, 2]},
        {"tokenizer.ggml.tokens": "text"},
        {"llama.attention.head_count": 0},
        {"llama.attention.head_count_kv": [1, 2, 1]},
        {"llama.block_count": "three"},
    ],
)
def test_fields_of_another_kind_give_no_size(tmp_path, fields) -> None:
    writer = GGUFWriter(tmp_path / "m.gguf", "llama")
    honest = {"llama.attention.head_count": 2, "llama.attention.head_count_kv": 1, "llama.block_count": 3}
    del writer.kv_data[0]["general.architecture"]
    for name, value in ({"general.architecture": "llama", "llama.embedding_length": 16} | honest | fields).items():
        add = {int: writer.add_uint32, str: writer.add_string, list: writer.add_array}[type(value)]
        add(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert model_size(tmp_path / "m.gguf") is None


@given(data=st.data())
@on_one_file
def test_bytes_changed_anywhere_give_a_header_or_a_refusal(tmp_path, data) -> None:
    whole, path = bytearray(write_gguf(tmp_path / "m.gguf")), tmp_path / "changed.gguf"
    for place in data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=6)):
        whole[place] = data.draw(st.integers(0, 255))
    path.write_bytes(whole)
    with small_and_quick():
        size = model_size(path)
        assert size is None or 0 <= size.parameters <= 8 * len(whole)
        try:
            model_facts(str(path))
        except ConfigError as error:
            assert error.problem == f"{path} cannot be read as GGUF"  # noqa: PT017


@given(content=st.binary(max_size=400))
@example(content=b"")
@on_one_file
def test_bytes_of_no_file_at_all_are_refused(tmp_path, content) -> None:
    path = tmp_path / "m.gguf"
    for begin in (b"", b"GGUF", b"GGUF\x03\0\0\0"):
        path.write_bytes(begin + content)
        try:
            gguf_header(path)
        except UnreadableError:
            assert model_size(path) is None


def write_folder(folder: Path, header: object = TENSORS, config: object = CONFIG) -> bytes:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    whole = struct.pack("<Q", len(text)) + text + bytes(40)
    (folder / "model.safetensors").write_bytes(whole)
    return whole


def test_a_safetensors_header_cut_anywhere_gives_no_size(tmp_path) -> None:
    whole = write_folder(tmp_path)
    assert model_size(tmp_path) == ModelSize(parameters=10, stored_bytes=40, vocab_size=50, cached_values=96)
    for length in range(len(whole) - 40):
        (tmp_path / "model.safetensors").write_bytes(whole[:length])
        assert model_size(tmp_path) is None


@pytest.mark.parametrize("huge", HUGE[1:])
def test_a_safetensors_header_of_huge_length_is_not_read(tmp_path, huge) -> None:
    whole = write_folder(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", huge) + whole[8:])
    os.truncate(tmp_path / "model.safetensors", 1 << 36)
    with small_and_quick():
        assert model_size(tmp_path) is None


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 100_000, b"[]", b"3", b"", b"\xff", b'{"a": ' * 50_000,
        {"a": 3}, {"a": {}}, {"a": {"shape": 3, "data_offsets": [0, 4]}}, {"a": {"shape": [1], "data_offsets": [0]}},
        {"a": {"shape": [-1], "data_offsets": [0, 4]}}, {"a": {"shape": [1], "data_offsets": [4, 0]}},
        {"a": {"shape": [1 << 60], "data_offsets": [0, 4]}}, {"a": {"shape": [1] * 99, "data_offsets": [0, 4]}},
        {"a": {"shape": [1.5], "data_offsets": [0, 4]}}, {"a": {"shape": [float("inf")], "data_offsets": [0, 4]}},
        {"a": {"shape": [True], "data_offsets": [0, 4]}}, {"a": {"shape": ["9" * 9], "data_offsets": [0, 4]}},
    ],
)  # fmt: skip
def test_safetensors_headers_of_another_shape_give_no_size(tmp_path, header) -> None:
    write_folder(tmp_path, header)
    assert model_size(tmp_path) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": float("inf")}, {"hidden_size": 0}, {"num_attention_heads": []}, {"vocab_size": None},
        {"num_hidden_layers": 10**400}, {"text_config": {"vocab_size": -5}},
    ],
)  # fmt: skip
def test_configs_with_odd_values_give_no_size(tmp_path, changes) -> None:
    write_folder(tmp_path, config=CONFIG | changes)
    assert model_size(tmp_path) is None


LEAVES = st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.integers()
NAMES = st.sampled_from(["shape", "data_offsets", "a", *CONFIG])
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner), max_leaves=12)


@given(content=VALUES)
@on_one_file
def test_any_json_gives_a_size_or_none(tmp_path, content) -> None:
    write_folder(tmp_path, header={"a": content}, config=content)
    model_size(tmp_path)
    write_folder(tmp_path, config=content)
    model_size(tmp_path)


def test_json_is_read_within_bounds(tmp_path) -> None:
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "holes.json").touch()
    os.truncate(tmp_path / "holes.json", 1 << 36)
    os.mkfifo(tmp_path / "fifo.json")
    for name in ("deep.json", "list.json", "holes.json", "fifo.json", "none.json"):
        with small_and_quick(), pytest.raises(UnreadableError):
            json_object(tmp_path / name)
    (tmp_path / "model.safetensors").write_bytes(b"")
    os.mkfifo(tmp_path / "fifo.gguf")
    refused(tmp_path / "fifo.gguf")
