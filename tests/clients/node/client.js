// The whole claim, complete and replay round through pg, in each way that it can send a parameter.
//
// Connects by the environment (PGHOST, PGPORT, PGDATABASE, PGUSER) and prints a JSON object: what failed, by name.

'use strict';

const assert = require('node:assert');
const { Client } = require('pg');

const TEXT = 'C:\\new\\x41 \\\\ "quoted" \'single\' %s $1 \u00e9\u4e16\u{1f600}\r\n\t{"b":1,"a":1.0}';
const BINARY = Buffer.from(Array.from({ length: 256 }, (_, byte) => byte));
const HEADERS = [['Set-Cookie', 'a="1\\"; b'], ['Set-Cookie', 'c, d'], ['X-Empty', '']];

// pg sends no parameter types, so each body says which of the two functions is meant.
const claim = (type) => `SELECT * FROM idem_claim($1, $2, $3, $4::${type})`;
const complete = (type) => `SELECT idem_complete($1, $2, $3, $4, $5::${type}, $6)`;

const one = async (client, query, values) => (await client.query(query, values)).rows[0];
const json = (value) => (value === null ? null : JSON.stringify(value));

/** With `name`, the statements are prepared on the server and used twice. */
async function round(client, endpoint, type, body, { headers = HEADERS, name } = {}) {
  const statement = (text, suffix, values) => ({ text, values, name: name && `${name} ${suffix}` });
  const request = body ?? '';
  const expected = body === null ? null : Buffer.from(body);
  for (const key of ['key 1', 'key 2']) {
    const scope = ['tenant', endpoint, key];
    const arrive = (sent) => one(client, statement(claim(type), 'claim', [...scope, sent]));
    await client.query('BEGIN');
    assert.strictEqual((await arrive(request)).outcome, 'execute');
    const completion = statement(complete(type), 'complete', [...scope, 201, body, json(headers)]);
    assert.deepStrictEqual(await one(client, completion), { idem_complete: true });
    assert.deepStrictEqual(await one(client, completion), { idem_complete: false });
    await client.query('COMMIT');
    const replay = await arrive(request);
    assert.strictEqual(replay.outcome, 'replay');
    assert.strictEqual(replay.response_code, 201);
    assert.deepStrictEqual(replay.response_headers, headers);
    assert.deepStrictEqual(replay.response_body, expected);
    const changed = Buffer.isBuffer(request) ? Buffer.concat([request, Buffer.from('!')]) : `${request}!`;
    assert.strictEqual((await arrive(changed)).outcome, 'key_reused');
  }
}

// A name makes pg prepare the statement on the server: not behind a pooler.
const NAMED = {
  prepared_strings: (client) => round(client, 'POST /text-p', 'text', TEXT, { name: 'text' }),
  prepared_buffers: (client) => round(client, 'POST /bytes-p', 'bytea', BINARY, { name: 'bytes' }),
};

const CASES = {
  ...('BEHIND_POOLER' in process.env ? {} : NAMED),
  strings: (client) => round(client, 'POST /text', 'text', TEXT),
  buffers: (client) => round(client, 'POST /bytes', 'bytea', BINARY),
  no_headers: (client) => round(client, 'POST /bare', 'text', TEXT, { headers: null }),

  async no_body_and_an_empty_one_differ(client) {
    await round(client, 'POST /none', 'text', null);
    await round(client, 'POST /none-b', 'bytea', null);
    await round(client, 'POST /empty', 'text', '');
    await round(client, 'POST /empty-b', 'bytea', Buffer.alloc(0));
  },

  async a_string_without_a_type_is_text(client) {
    const scope = ['tenant', 'POST /untyped', 'k'];
    const untyped = 'SELECT * FROM idem_claim($1, $2, $3, $4)';
    assert.strictEqual((await one(client, untyped, [...scope, TEXT])).outcome, 'execute');
    await client.query('SELECT idem_complete($1, $2, $3, $4, $5)', [...scope, 200, TEXT]);
    const replay = await one(client, untyped, [...scope, TEXT]);
    assert.strictEqual(replay.outcome, 'replay');
    assert.deepStrictEqual(replay.response_body, Buffer.from(TEXT));
  },

  async a_buffer_without_a_type_is_refused_rather_than_stored_wrong(client) {
    const untyped = 'SELECT * FROM idem_claim($1, $2, $3, $4)';
    await assert.rejects(one(client, untyped, ['tenant', 'POST /untyped-b', 'k', BINARY]), { code: '22021' });
  },

  async text_and_bytes_are_the_same_request(client) {
    const scope = ['tenant', 'POST /same', 'k'];
    assert.strictEqual((await one(client, claim('text'), [...scope, TEXT])).outcome, 'execute');
    assert.strictEqual((await one(client, claim('bytea'), [...scope, Buffer.from(TEXT)])).outcome, 'in_progress');
  },

  async autocommit(client) {
    const scope = ['tenant', 'POST /autocommit', 'k'];
    assert.strictEqual((await one(client, claim('text'), [...scope, TEXT])).outcome, 'execute');
    const busy = await one(client, claim('text'), [...scope, TEXT]);
    assert.strictEqual(busy.outcome, 'in_progress');
    assert.strictEqual(JSON.parse(busy.response_body).status, 409);
    await client.query(complete('text'), [...scope, 200, TEXT, json(HEADERS)]);
    assert.deepStrictEqual((await one(client, claim('text'), [...scope, TEXT])).response_body, Buffer.from(TEXT));
  },

  async errors_carry_their_sqlstate(client) {
    const values = ['tenant', 'POST /x', 'none', 200, TEXT, null];
    await assert.rejects(client.query(complete('text'), values), (error) => {
      assert.strictEqual(error.code, 'ID001');
      assert.ok(error.detail && error.hint);
      return true;
    });
  },

  async bytes_that_were_cast_to_text_are_refused(client) {
    const scope = ['tenant', 'POST /cast', 'k'];
    await client.query(claim('text'), [...scope, TEXT]);
    await assert.rejects(client.query(complete('bytea::text'), [...scope, 200, BINARY, null]), { code: '22023' });
    await client.query(complete('text'), [...scope, 200, TEXT, null]);
  },
};

async function main() {
  const failed = {};
  for (const [name, run] of Object.entries(CASES)) {
    const client = new Client();
    try {
      await client.connect();
      await run(client);
    } catch (error) {
      failed[name] = error.stack;
    } finally {
      await client.end();
    }
  }
  const passed = Object.keys(CASES).length - Object.keys(failed).length;
  const driver = `pg ${require('pg/package.json').version}`;
  console.log(JSON.stringify({ driver, passed, failed }));
}

main();
