"""The bytes that roles hold on devices while they wait, work and sleep."""
