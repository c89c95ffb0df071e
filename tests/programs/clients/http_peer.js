// Node.js: an HTTP server, and a client with an agent that keeps connections.
//
//     node http_peer.js server ADDRESS PORT
//     node http_peer.js client ADDRESS PORT
//
// The server answers POST by sending the body back while it still arrives, with its checksum as a trailer; the client
// verifies both. Sizes and bytes are the same in every run.
'use strict';

const crypto = require('crypto');
const http = require('http');

const [role, address, port] = process.argv.slice(2);
const REQUESTS = 300;
const AT_ONCE = 10;
const SIZES = [1, 100, 4000, 70000, 1000000];

function bytes(seed, size) {
  return crypto.createCipheriv('aes-128-ctr', Buffer.alloc(16, seed), Buffer.alloc(16)).update(Buffer.alloc(size));
}

function serve() {
  const server = http.createServer((request, response) => {
    const hash = crypto.createHash('sha256');
    response.writeHead(200, { Trailer: 'Checksum' });
    request.on('data', (chunk) => {
      hash.update(chunk);
      if (!response.write(chunk)) {
        request.pause();
        response.once('drain', () => request.resume());
      }
    });
    request.on('end', () => {
      response.addTrailers({ Checksum: hash.digest('hex') });
      response.end();
    });
  });
  server.keepAliveTimeout = 60000;
  server.listen(Number(port), address);
  process.on('SIGTERM', () => process.exit(0));
}

function ask(agent, number) {
  const body = bytes(number, SIZES[number % SIZES.length]);
  return new Promise((resolve, reject) => {
    const request = http.request({ agent, host: address, port, method: 'POST', path: `/${number}` }, (response) => {
      const hash = crypto.createHash('sha256');
      response.on('data', (chunk) => hash.update(chunk));
      response.on('error', reject);
      response.on('end', () => {
        const checksum = hash.digest('hex');
        const sent = crypto.createHash('sha256').update(body).digest('hex');
        if (checksum !== sent || response.trailers.checksum !== sent) reject(new Error(`request ${number}: other bytes came back`));
        else resolve(checksum);
      });
    });
    request.on('error', reject);
    request.end(body);
  });
}

async function work() {
  const agent = new http.Agent({ keepAlive: true, maxSockets: AT_ONCE });
  const checksums = [];
  for (let start = 0; start < REQUESTS; start += AT_ONCE) {
    const numbers = Array.from({ length: AT_ONCE }, (_, index) => start + index);
    checksums.push(...await Promise.all(numbers.map((number) => ask(agent, number))));
  }
  agent.destroy();
  const all = crypto.createHash('sha256').update(checksums.join('')).digest('hex');
  console.log(JSON.stringify({ requests: checksums.length, checksum: all }));
}

if (role === 'server') serve();
else work().catch((error) => { console.error(error); process.exit(1); });
