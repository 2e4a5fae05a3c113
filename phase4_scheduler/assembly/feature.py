"""A feature, and how features are found, compared and mixed into the core's classes.

phase4_scheduler/features/README.md explains how to write one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar

from phase2_attention_kvcache.model.transformer import Transformer
from phase3_paged_attention.paging import KVStorage, PagedCache
from phase4_scheduler.engine.config import EngineConfig

FEATURES = "inference_lab.features"  # entry points of pyproject.toml: the list of features, outermost first


class Feature:
    """Something that an engine does beyond its core. A subclass sets and overrides what it needs.

    Attributes:
        settings: the keyword arguments of the engine that belong to it, with their defaults.
        scheduler, block_manager, runner, core: classes that are mixed in before the core's of that name.
        refuses: names of features that do not go together with it, and why.
        optional: whether the engine also works without it, where a part of your own has no such class mixed in.
    """

    settings: ClassVar[Mapping[str, Any]] = {}
    scheduler: ClassVar[type | None] = None
    block_manager: ClassVar[type | None] = None
    runner: ClassVar[type | None] = None
    core: ClassVar[type | None] = None
    refuses: ClassVar[Mapping[str, str]] = {}
    optional: ClassVar[bool] = False

    def __init__(self, **settings: Any) -> None:
        for name, default in self.settings.items():
            setattr(self, name, settings.get(name, default))

    def is_on(self, model: Transformer, config: EngineConfig, features: Sequence["Feature"]) -> bool:
        """Whether this engine needs it: where its first setting is neither the default nor None, or always without settings.

        Raises ValueError: the settings do not fit the model.
        """
        return all(
            getattr(self, name) not in (default, None) for name, default in list(self.settings.items())[:1]
        )

    def arguments(self, part: str) -> dict[str, Any]:
        """Keyword arguments for its class in the place of `part`: "scheduler", "block_manager", "runner" or "core"."""
        return {}

    def load_model(self, path: Path, dtype: str, device: str) -> Transformer | None:
        """The model, if it is loaded in another way than by `Transformer.from_pretrained`."""

    def prepare_model(self, model: Transformer) -> None:
        """Change a model that has just been loaded."""

    def kv_bytes_per_token(self, model: Transformer, nbytes: int) -> int:
        """Bytes of a token in the caches of the engine, where it would be `nbytes` without this feature."""
        return nbytes

    def kv_storage(self, model: Transformer, config: EngineConfig, num_blocks: int) -> KVStorage | None:
        """Where keys and values are stored, if not as the model computes them."""

    def kv_cache(self, model: Transformer, config: EngineConfig, num_blocks: int) -> PagedCache | None:
        """The cache, if it is not the runner's own."""


@cache
def installed_features() -> tuple[type[Feature], ...]:
    """All features, outermost first. Empty where the course is not installed: then the engine is its core."""
    return tuple(kind for found in entry_points(group=FEATURES) for kind in found.load())


def find_features(settings: Mapping[str, Any]) -> list[Feature]:
    """The installed features with these settings. Raises ValueError: a setting belongs to none, or its value is wrong."""
    of_features = {n for kind in installed_features() for n in kind.settings}
    known = {f.name for f in fields(EngineConfig)} | of_features
    if unknown := sorted(set(settings) - known):
        raise ValueError(f"unknown setting {unknown[0]!r}: the engine knows {', '.join(sorted(known))}")
    return [kind(**{n: settings[n] for n in kind.settings if n in settings}) for kind in installed_features()]


def feature_name(feature: Feature) -> str:
    return next(iter(feature.settings), type(feature).__name__)


def refuse_pairs(features: Sequence[Feature]) -> None:
    """Raise ValueError for two features that do not go together."""
    for one in features:
        for other in features:
            if (why := one.refuses.get(type(other).__name__)) is not None:
                raise ValueError(
                    f"{feature_name(one)} and {feature_name(other)} do not go together: {why}; leave one of them out"
                )


def mixed(kind: type, part: str, features: Sequence[Feature]) -> type:
    """A class of the core with what the features add to it."""
    mixins = [m for f in features if (m := getattr(f, part)) is not None and not issubclass(kind, m)]
    return type(kind.__name__, (*mixins, kind), {}) if mixins else kind


def extended(kind: type, part: str, features: Sequence[Feature], *args: Any) -> Any:
    """An object of that class. Each mixin takes its own keyword arguments, and hands the others on."""
    arguments = {n: value for f in features for n, value in f.arguments(part).items()}
    return mixed(kind, part, features)(*args, **arguments)
