"""The values that describe a plan: Mesh, Axis, Dim, Tensor, Op, Layout, Plan and their results. All are frozen."""
