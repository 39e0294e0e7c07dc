"""No test asserts how fast it is: a loaded machine must not fail one."""

from hypothesis import settings

settings.register_profile("kvlogd", deadline=None)
settings.load_profile("kvlogd")
