//! RDMA over a fabric in memory.

mod lane;
