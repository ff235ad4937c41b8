# The form of the stored results that other libraries gave (torch_vectors.py, jax_vectors.py), and how their inputs are drawn.
# A file holds the cases of one layer. A case opens with `case NAME`, then come `number NAME VALUE` and `tensor NAME SIZES...` with
# its values below, in row-major order. Inputs are multiples of 1/64, so that f32 holds them exactly; they are drawn anew for each
# layer, and so a case added at the end of a layer leaves all others as they are.
import pathlib
import sys
import zlib

import numpy

random = numpy.random.default_rng(0)


def draw(*shape, low=-64, high=64):
    """Multiples of 1/64 from low/64 to high/64."""
    return random.integers(low, high + 1, shape) / 64.0


def single(value):
    """What f32 holds of a number."""
    return float(numpy.float32(value))


def array(value):
    """A tensor of any library, or a plain array, as numpy's."""
    return numpy.asarray(value.detach() if hasattr(value, "detach") else value)


class Writer:
    def __init__(self):
        self.lines = []

    def case(self, name, **fields):
        self.lines.append(f"case {name}")
        for key, value in fields.items():
            if isinstance(value, (bool, int, float)):
                self.lines.append(f"number {key} {value:.17g}")
                continue
            values = array(value)
            self.lines.append(" ".join(["tensor", key, *map(str, values.shape)]))
            flat = values.flatten().tolist()
            for start in range(0, len(flat), 6):
                self.lines.append(" ".join(f"{v:.17g}" for v in flat[start : start + 6]))


def write(folder, layers):
    """Calls the functions of the layers that the command line names, or all, and writes a file for each."""
    global random
    for name in sys.argv[1:] or layers:
        random = numpy.random.default_rng(zlib.crc32(name.encode()))
        writer = Writer()
        layers[name](writer)
        path = pathlib.Path(__file__).parent / folder / f"{name}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(writer.lines) + "\n", encoding="utf-8")
        print(f"{folder}/{path.name}: {sum(line.startswith('case') for line in writer.lines)} cases, {path.stat().st_size} bytes")
