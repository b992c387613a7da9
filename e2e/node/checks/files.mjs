import assert from "node:assert/strict";

async function* pieces(count, size) {
  for (let n = 0; n < count; n += 1) yield new Uint8Array(size).fill(n);
}

export default async function ({ create }) {
  const { files } = await create();
  await files.createDirectories([{ path: "/tmp/d/e", mode: 755 }]);
  await files.writeFiles([
    { path: "/tmp/d/a.txt", data: "héllo\nworld\n", mode: 640 },
    { path: "/tmp/d/b.bin", data: new Uint8Array([0, 255, 10, 13]) },
    { path: "/tmp/d/e/big", data: pieces(64, 65_536) },
  ]);
  assert.equal(await files.readFile("/tmp/d/a.txt"), "héllo\nworld\n");
  assert.deepEqual([...(await files.readBytes("/tmp/d/b.bin"))], [0, 255, 10, 13]);
  assert.equal(await files.readFile("/tmp/d/a.txt", { range: "bytes=0-0" }), "h");

  let length = 0;
  for await (const piece of files.readBytesStream("/tmp/d/e/big")) {
    for (const [at, byte] of piece.entries()) {
      if (byte !== Math.floor((length + at) / 65_536)) assert.fail(`byte ${length + at} is ${byte}`);
    }
    length += piece.length;
  }
  assert.equal(length, 64 * 65_536);

  const about = await files.getFileInfo(["/tmp/d/a.txt"]);
  assert.equal(about["/tmp/d/a.txt"].size, 13);
  assert.equal(about["/tmp/d/a.txt"].mode, 640);
  assert.ok(about["/tmp/d/a.txt"].modifiedAt instanceof Date);

  const found = await files.search({ path: "/tmp/d", pattern: "*.txt" });
  assert.deepEqual(found.map((file) => file.path), ["/tmp/d/a.txt"]);
  const listed = await files.listDirectory({ path: "/tmp/d", depth: 1 });
  assert.deepEqual(listed.map((file) => file.path).sort(), ["/tmp/d/a.txt", "/tmp/d/b.bin", "/tmp/d/e"]);

  await files.moveFiles([{ src: "/tmp/d/a.txt", dest: "/tmp/d/c.txt" }]);
  await files.replaceContents([{ path: "/tmp/d/c.txt", oldContent: "world", newContent: "there" }]);
  assert.equal(await files.readFile("/tmp/d/c.txt"), "héllo\nthere\n");
  await files.setPermissions([{ path: "/tmp/d/c.txt", mode: 600 }]);
  assert.equal((await files.getFileInfo(["/tmp/d/c.txt"]))["/tmp/d/c.txt"].mode, 600);
  await files.deleteFiles(["/tmp/d/c.txt"]);
  await files.deleteDirectories(["/tmp/d/e"]);
  await assert.rejects(files.readFile("/tmp/d/c.txt"));
}
