"""Settings of all tests."""

from hypothesis import settings

# No test asserts an absolute time: a machine under load may take any.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")
