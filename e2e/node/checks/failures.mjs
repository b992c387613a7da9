import assert from "node:assert/strict";

// What cannot be done reaches the client as its cause, not as "timed out".
export default async function ({ create }) {
  await assert.rejects(create({ entrypoint: ["/no/such/program"] }), /\/no\/such\/program/);
  await assert.rejects(create({ resource: { gpu: "1" } }), /gpu/i);
  await assert.rejects(create({ image: "127.0.0.1:1/none:1" }), /127\.0\.0\.1:1/);
}
