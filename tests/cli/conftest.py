"""Import modules that copy `runs.assets.Assets`, so that they keep the class where tests here replace it."""

import whichlayers.deploy.build
import whichlayers.deploy.costs  # noqa: F401
