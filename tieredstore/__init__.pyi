# ruff: noqa: I001 - grouped by purpose
# The public names by purpose, for type checkers, and for `__init__.py`, which reads this file.

# Reading:
from tieredstore.reader.readable_tiers import open as open  # noqa: A004 - as in zarr, gzip or rasterio
from tieredstore.reader.readable_tier import ReadableTier as ReadableTier
from tieredstore.reader.readable_tiers import ReadableTiers as ReadableTiers
from tieredstore.message import Message as Message
from tieredstore.message import Origin as Origin
from tieredstore.reader.readable_tiers import FoundByKey as FoundByKey
from tieredstore.metrics.summary import QueueSummary as QueueSummary
from container.metadata.records import Gap as Gap
from tieredstore.reader.cursor import QueueCursor as QueueCursor
from container.errors import Finding as Finding
from container.queue.positions import Boundary as Boundary
from container.queue.positions import TimeRules as TimeRules
from container.queue.segments import TieredSegment as TieredSegment

# Fetching:
from fetcher.fetcher import TieredMessageFetcher as TieredMessageFetcher
from fetcher.options import FetcherOptions as FetcherOptions
from fetcher.result import FetchResult as FetchResult
from fetcher.result import FetchStatus as FetchStatus
from fetcher.result import FetchedMessages as FetchedMessages
from fetcher.fetcher import FetcherStatistics as FetcherStatistics
from container.lookup.query import QueryResult as QueryResult
from container.record.message import StoredMessage as StoredMessage

# Tiering:
from tieredstore.follower import follow as follow
from tieredstore.follower import Follower as Follower
from dispatcher.statistics import DispatchStatistics as DispatchStatistics
from dispatcher.statistics import QueueStatistics as QueueStatistics
from dispatcher.ports import QueueState as QueueState
from dispatcher.statistics import Progress as Progress
from tieredstore.metrics.summary import TopicSummary as TopicSummary
from tieredstore.metrics.summary import Loss as Loss
from tieredstore.following.statistics import ScanStatistics as ScanStatistics
from container.upkeep.upkeep import UpkeepStatistics as UpkeepStatistics

# Storing:
from tieredstore.store.configured import open_store as open_store
from tieredstore.store.read_only import read_store as read_store
from tieredstore.store.read_only import StoreReader as StoreReader
from tieredstore.store.tiered import TieredMessageStore as TieredMessageStore
from tieredstore.store.local import LocalMessageStore as LocalMessageStore
from tieredstore.store.protocol import MessageStore as MessageStore
from tieredstore.store.by_topic import Placed as Placed
from tieredstore.store.by_topic import Position as Position
from tieredstore.store.levels import Level as Level
from tieredstore.hot.encoding import NewMessage as NewMessage
from tieredstore.hot.encoding import Appended as Appended
from tieredstore.store.protocol import GetMessageResult as GetMessageResult
from tieredstore.hot.encoding import MessageRefused as MessageRefused
from container.errors import InUse as InUse
from tieredstore.hot.options import HotWriteOptions as HotWriteOptions
from tieredstore.hot.options import RetentionOptions as RetentionOptions
from tieredstore.hot.options import UntieredPolicy as UntieredPolicy
from tieredstore.hot.options import ReadLimits as ReadLimits

# Plug-ins:
from tieredstore.store.plugins import ForwardingMessageStore as ForwardingMessageStore
from tieredstore.store.plugins import PluggedStore as PluggedStore
from tieredstore.store.plugins import PluginContext as PluginContext

# Settings:
from tieredstore.config.effective import Config as Config
from tieredstore.config.sources import ConfigError as ConfigError

# Errors:
from provider.errors import StoreError as StoreError
from provider.errors import AlreadyExists as AlreadyExists
from container.errors import BytesMissing as BytesMissing
from provider.errors import Closed as Closed
from provider.errors import Corrupt as Corrupt
from provider.errors import Denied as Denied
from provider.errors import Fenced as Fenced
from container.errors import NewerVersion as NewerVersion
from tieredstore.following.directory.layout import NotAStore as NotAStore
from provider.errors import NotFound as NotFound
from provider.errors import OutOfRange as OutOfRange
from container.errors import Owned as Owned
from container.errors import Refused as Refused
from provider.errors import Unavailable as Unavailable

# Without await:
from tieredstore import sync as sync

__all__: list[str]  # noqa: PYI035 - the names above
__version__: str
