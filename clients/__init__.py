"""The agents that people use: installed, driven, recorded."""

import os

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # litellm asks the network for prices otherwise
