"""Features: one builder for training, backtest and service. docs/features.md lists what it gives and how it is used."""

from tocsin.forecaster.features.builder import FeatureBuilder
from tocsin.forecaster.features.channels import Channel, Kind
from tocsin.forecaster.features.feed import Feed, resume, warm
from tocsin.forecaster.features.live import examples_now
from tocsin.forecaster.features.plan import Plan
from tocsin.forecaster.features.readings import Condenser
from tocsin.forecaster.features.state import restore, save
from tocsin.forecaster.features.table import FeatureTable
from tocsin.forecaster.features.walk import Rules, Span, examples_from

__all__ = [
    "Channel",
    "Condenser",
    "FeatureBuilder",
    "FeatureTable",
    "Feed",
    "Kind",
    "Plan",
    "Rules",
    "Span",
    "examples_from",
    "examples_now",
    "restore",
    "resume",
    "save",
    "warm",
]
