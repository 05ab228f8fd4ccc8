"""The immutable values that describe a plan (Mesh, Axis, Op, Layout, Plan, ...) and the results of its analysis."""
