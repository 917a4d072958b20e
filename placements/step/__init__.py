"""The forecast of a step of placed roles: its tasks, its period and the bytes of its pools."""
