"""The options of a loader."""

from torch_dataloader_utils.options.delta import DeltaOptions as DeltaOptions
from torch_dataloader_utils.options.follow import FollowOptions as FollowOptions
from torch_dataloader_utils.options.groups import EVEN as EVEN
from torch_dataloader_utils.options.groups import LAST_BATCH as LAST_BATCH
from torch_dataloader_utils.options.groups import ConvertOptions as ConvertOptions
from torch_dataloader_utils.options.groups import ReadOptions as ReadOptions
from torch_dataloader_utils.options.groups import SplitOptions as SplitOptions
from torch_dataloader_utils.options.groups import WorkerOptions as WorkerOptions
from torch_dataloader_utils.options.groups import check_last_batch as check_last_batch
from torch_dataloader_utils.options.keywords import Call as Call
from torch_dataloader_utils.options.keywords import Options as Options
from torch_dataloader_utils.options.keywords import option_defaults as option_defaults
from torch_dataloader_utils.options.keywords import options_of as options_of
from torch_dataloader_utils.options.keywords import parse_delta_options as parse_delta_options
from torch_dataloader_utils.options.keywords import parse_options as parse_options
from torch_dataloader_utils.options.keywords import parse_table_options as parse_table_options
from torch_dataloader_utils.options.keywords import plain_value as plain_value
from torch_dataloader_utils.options.keywords import repeats_rows as repeats_rows
from torch_dataloader_utils.options.policies import POLICY_OPTIONS as POLICY_OPTIONS
from torch_dataloader_utils.options.policies import PolicyOptions as PolicyOptions
from torch_dataloader_utils.options.policies import check_names as check_names
from torch_dataloader_utils.options.policies import split_sharding as split_sharding
from torch_dataloader_utils.options.showing import progress_of as progress_of
from torch_dataloader_utils.options.shuffle import ShuffleOptions as ShuffleOptions
from torch_dataloader_utils.options.subset import SubsetOptions as SubsetOptions
from torch_dataloader_utils.options.tables import TableOptions as TableOptions
