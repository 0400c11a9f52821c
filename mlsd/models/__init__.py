"""Models by name: the manifest, the hub, where files lie on this machine."""

import warnings

# In a notebook tqdm, which the hub's library imports, asks for widgets; none of its bars is shown here.
warnings.filterwarnings("ignore", message="IProgress not found")
