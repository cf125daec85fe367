#!/usr/bin/env python3
"""The attention kernels for GPUs as a repository that Hugging Face `kernels` loads, without the compiled part of the package.

    python3 scripts/hub/lay_out.py FOLDER

Then `kernels.get_local_kernel(Path(FOLDER))` loads it, and `kernels.get_kernel` does where FOLDER was uploaded. Nothing is uploaded here.
"""

import hashlib, json, re, shutil, sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: Modules of the package that attention on GPUs consists of.
MODULES = ("_renamed.py", "torch/_attention.py", "torch/_checks.py", "torch/_documents.py", "torch/_gpu.py", "torch/_maps.py", "torch/_ops.py", "torch/_positions.py", "torch/cache.py", "torch/triton_kernels.py", "torch/triton_positions.py", "torch/triton_relative.py", "torch/triton_scores.py")
OWN = ("__init__.py", "_native.py")
#: PyTorch's name of the package's operations, in calls, registrations and as the library.
OPERATIONS = re.compile(r'(torch\.ops\.|"|Library\(")kerple(\.|::|", "DEF")')


def version():
    return re.search(r'^version = "([^"]+)"', (ROOT / "Cargo.toml").read_text(), re.M)[1]


def lay_out(folder):
    """Writes `build/torch-universal`, one variant for all versions of PyTorch and all GPUs."""
    sources = {name: (ROOT / "python/kerple" / name).read_text() for name in MODULES}
    sources |= {name: (Path(__file__).parent / name.replace("__init__", "init")).read_text() for name in OWN}
    sources["torch/__init__.py"] = '"""Attention on tensors of PyTorch."""\n'
    digest = hashlib.sha256("".join(sources[name] for name in sorted(sources)).encode()).hexdigest()[:12]
    # PyTorch knows an operation by its name alone, and kerple itself, or another version, may be loaded too
    unique = f"_kerple_attention_{digest}"
    made, count = OPERATIONS.subn(lambda found: found[1] + unique + found[2], sources["torch/_ops.py"])
    if count < 10 or "torch.ops.kerple" in made:
        raise SystemExit("torch/_ops.py: operations are registered in a way that is not known here")
    sources["torch/_ops.py"] = made
    variant = Path(folder) / "build/torch-universal"
    shutil.rmtree(variant, ignore_errors=True)
    for name, text in sources.items():
        (variant / name).parent.mkdir(parents=True, exist_ok=True)
        (variant / name).write_text(text)
    metadata = {"id": unique, "name": "kerple-attention", "version": 1, "license": "MIT OR Apache-2.0", "python-depends": [], "backend": {"type": "cuda"}}
    (variant / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n")
    for license in ROOT.glob("LICENSE-*"):
        shutil.copy(license, folder)
    card = (Path(__file__).parent / "card.md").read_text()
    (Path(folder) / "README.md").write_text(card.replace("VERSION", version()))


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    lay_out(sys.argv[1])
