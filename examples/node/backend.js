// A backend for localnet in Node.js: it proxies TCP connections to ClusterIPs, and writes the applied state to FILE.
// node backend.js unix:///PATH [FILE]; it needs CAP_NET_ADMIN, the command ip, and localnetv1.proto in its own folder.
const { spawnSync } = require("node:child_process");
const fs = require("node:fs");
const net = require("node:net");
const grpc = require("@grpc/grpc-js");
const { loadSync } = require("@grpc/proto-loader");

const [api, file] = process.argv.slice(2);
const reading = { keepCase: true, longs: String, enums: String, defaults: true };
const proto = grpc.loadPackageDefinition(loadSync(`${__dirname}/localnetv1.proto`, reading)).localnetv1;
const backoff = { "grpc.initial_reconnect_backoff_ms": 100, "grpc.max_reconnect_backoff_ms": 2_000 };
const options = { ...backoff, "grpc.keepalive_time_ms": 30_000, "grpc.keepalive_timeout_ms": 10_000 };
const connect = (Service) => new Service(api.replace("tcp://", ""), grpc.credentials.createInsecure(), options);
const [endpoints, backends] = [connect(proto.Endpoints), connect(proto.Backends)];

// Waits for a state other than the one that the token identifies. Fails if the stream does not end with OK.
async function next(token) {
  const state = { services: new Map() };
  for await (const { Next, Node, Endpoints: item } of endpoints.Next(token)) {
    if (Next) state.token = Next;
    if (Node) state.node = Node;
    if (!item) continue;
    const key = `${item.Service.Namespace}/${item.Service.Name}`;
    if (item.Continues) state.services.get(key).endpoints.push(...item.Endpoints);
    else state.services.set(key, { ...item.Service, endpoints: item.Endpoints });
  }
  return state;
}

const addressesIn = (set) => (set ? [...set.V4, ...set.V6] : []);
// The endpoints of one port of a Service, with the names of their scopes.
const endpointsOf = (service, port) => service.endpoints.flatMap(({ IPs, PortOverrides, Scopes }) => {
  const [host, scopes] = [addressesIn(IPs)[0], Object.keys(Scopes ?? {}).filter((scope) => Scopes[scope])];
  return PortOverrides.filter(({ Name }) => Name === port.Name).map(({ Port }) => ({ host, port: Port, scopes }));
});

// Writes the state in the format of the conformance kit.
function write({ token, node, services }) {
  const lines = [`rev ${token.InstanceID} ${token.Rev}`, `node ${node.Name}`];
  for (const [key, service] of services) {
    for (const [kind, of] of [["cluster", "ClusterIPs"], ["external", "ExternalIPs"], ["balancer", "LoadBalancerIPs"]])
      for (const address of addressesIn(service.IPs[of])) lines.push(`vip ${key} ${kind} ${address}`);
    for (const port of service.Ports.filter(({ Protocol }) => ["TCP", "UDP", "SCTP"].includes(Protocol))) {
      const name = `${key} ${port.Name || "-"}`;
      lines.push(`port ${name} ${port.Protocol} ${port.Port} ${port.NodePort}`);
      for (const { host, port: number, scopes } of endpointsOf(service, port))
        lines.push(`endpoint ${name} ${host} ${number} ${scopes.join("+").toLowerCase() || "-"}`);
    }
    if (service.ClientIP) lines.push(`affinity ${key} ${service.ClientIP.TimeoutSeconds}`);
  }
  fs.writeFileSync(`${file}.new`, lines.join("\n") + "\n");
  fs.renameSync(`${file}.new`, file);
}

let vips = new Set(); // The addresses that the backend has added to the loopback interface.
const servers = new Map(); // The listening sockets, by address and port.

// Adds and removes VIPs. It also adds routes, because the kernel adds its own IPv6 routes only a moment later.
function own(wanted) {
  const prefix = (vip) => (net.isIPv6(vip) ? `${vip}/128 dev lo nodad` : `${vip}/32 dev lo`);
  const lines = (verb, vip) => `addr ${verb} ${prefix(vip)}\nroute ${verb} local ${vip} dev lo metric 1024\n`;
  const removed = [...vips].filter((vip) => !wanted.has(vip)).map((vip) => lines("del", vip));
  const added = [...wanted].filter((vip) => !vips.has(vip)).map((vip) => lines("replace", vip));
  spawnSync("ip", ["-force", "-batch", "-"], { input: removed.concat(added).join(""), stdio: ["pipe", 1, 2] });
  vips = wanted;
}

function listen(host, port) {
  const server = net.createServer({ allowHalfOpen: true }, (client) => {
    const chosen = server.eligible[Math.floor(Math.random() * server.eligible.length)];
    const endpoint = net.connect({ ...chosen, allowHalfOpen: true });
    client.pipe(endpoint).pipe(client);
    client.on("error", () => endpoint.destroy());
    endpoint.on("error", () => client.resetAndDestroy());
  });
  return new Promise((done, failed) => server.once("error", failed).listen(port, host, () => done(server)));
}

// Serves the state, and returns what failed. The kernel rejects packets to a port without a socket.
async function apply({ services }) {
  const [addresses, wanted, problems] = [new Set(), new Map(), []];
  for (const service of services.values())
    for (const vip of addressesIn(service.IPs.ClusterIPs)) {
      addresses.add(vip);
      for (const port of service.Ports.filter(({ Protocol }) => Protocol === "TCP")) {
        const serves = ({ host, scopes }) => scopes.includes("Internal") && net.isIP(host) === net.isIP(vip);
        const eligible = endpointsOf(service, port).filter(serves);
        if (eligible.length > 0) wanted.set(`${vip} ${port.Port}`, eligible);
      }
    }
  for (const [key, server] of servers) if (!wanted.has(key) && servers.delete(key)) server.close();
  own(addresses);
  for (const [key, eligible] of wanted)
    try {
      if (!servers.has(key)) servers.set(key, await listen(...key.split(" ")));
      servers.get(key).eligible = eligible;
    } catch (error) {
      problems.push(error.message);
    }
  return problems;
}

async function run() {
  for (let [token, pause] = [{}, 100]; ; )
    try {
      const state = await next(token);
      const Error = (await apply(state)).join("; ");
      if (file) write(state);
      [token, pause] = [state.token, 100];
      const Families = ["IPv4", "IPv6"].map((Family) => ({ Family, AppliedRev: Error ? 0 : token.Rev, Error }));
      backends.Report({ Backend: "first-backend", ...token, Families }, () => {});
    } catch (error) {
      console.error(`keeping the applied state: ${error.message}`);
      await new Promise((done) => setTimeout(done, pause));
      pause = Math.min(2 * pause, 3_000);
    }
}
process.on("SIGTERM", () => process.exit(own(new Set())));
run();
