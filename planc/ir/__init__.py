"""The values that describe a plan: Mesh, Axis, Dim, Tensor, Op, Layout, Plan, and the results about plans. All are
frozen."""
