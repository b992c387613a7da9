//! Types of the lifecycle API.
