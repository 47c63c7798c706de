#Requires -RunAsAdministrator
<#
.SYNOPSIS
Answers the open questions about localnet-win on a Windows node, with a verdict for each of them.

.DESCRIPTION
The script takes about 10 minutes. Before you run it: drain the node, stop kube-proxy, and start a brain for this node. The network of the
CNI plugin must exist. If a step fails, the script continues with the next one.

At the end, the script prints each open question of docs/backends/windows.md with a verdict: yes, no, or open if the question was not
tested. Please report the verdicts, whatever they are, and attach the folder.

.EXAMPLE
.\windows.ps1 -NetworkName cbr0 -Api tcp://10.0.0.5:12090 -TlsArguments '--tls-ca','ca.pem','--tls-cert','node.pem','--tls-key','node.key' -ClusterIP 10.96.0.80
#>
param(
    # The HNS network of the pods.
    [Parameter(Mandatory)] [string] $NetworkName,
    # Path of localnet-win.exe.
    [string] $Program = (Join-Path $PSScriptRoot 'localnet-win.exe'),
    # Path of localnet-brain.exe, for the question brain-service.
    [string] $BrainProgram = (Join-Path $PSScriptRoot 'localnet-brain.exe'),
    # Address of this node's brain.
    [string] $Api = 'tcp://127.0.0.1:12090',
    # The flags --tls-ca, --tls-cert and --tls-key, if the brain requires TLS.
    [string[]] $TlsArguments = @(),
    # The source VIP. Required on an overlay network.
    [string] $SourceVip,
    # A ClusterIP that answers HTTP, and its port, for the questions packets, overlay, dsr and connections.
    [string] $ClusterIP,
    [int] $Port = 80,
    # Folder for the logs and listings.
    [string] $Folder = (Join-Path $env:TEMP "localnet-$(Get-Date -Format yyyyMMdd-HHmmss)"),
    # Whether to remove localnet's objects from HNS at the end.
    [switch] $Cleanup
)
$ErrorActionPreference = 'Stop'
New-Item -ItemType Directory -Force $Folder | Out-Null
$network = @('--network-name', $NetworkName)
if ($SourceVip) { $network += @('--source-vip', $SourceVip) }
$brain = @('--api', $Api) + $TlsArguments + $network

# The open questions of docs/backends/windows.md, in the same words and order.
$questions = [ordered]@{
    'documents' = 'HNS accepts the documents of the plan'
    'restart' = 'a second process finds the plan in HNS and writes nothing'
    'identifiers' = 'a new object has the requested identifier'
    'duplicates' = 'two endpoints may have the same address'
    'unchanged' = 'HNS returns a load balancer as it was written'
    'source' = 'HNS chooses a source address for a load balancer without one'
    'used-endpoint' = 'an endpoint that a load balancer uses cannot be deleted'
    'in-place' = 'a load balancer can be changed in place'
    'sctp' = 'a load balancer may have the protocol SCTP'
    'many-endpoints' = 'a load balancer may have 65 endpoints'
    'no-endpoints' = 'a load balancer without endpoints is refused'
    'port-zero' = 'a load balancer with the internal port 0 is refused'
    'codes' = 'HNS refuses documents with codes that localnet-win knows'
    'packets' = 'connections to a ClusterIP arrive'
    'overlay' = 'connections to a ClusterIP arrive on an overlay network'
    'dsr' = 'connections to a ClusterIP arrive with direct server return'
    'connections' = 'a connection survives the replacement of its load balancer'
    'service' = 'Windows starts and stops localnet-win as a service'
    'brain-service' = 'Windows starts and stops localnet-brain as a service, and localnet-win reaches it through a named pipe'
    'host-process' = 'localnet-win works in a HostProcess container'
}
$verdicts = @{}

function Set-Verdict([string] $Name, [string] $Verdict, [string] $Evidence) {
    $verdicts[$Name] = [pscustomobject]@{ Verdict = $Verdict; Evidence = $Evidence }
}

# Runs a step. If it fails, its questions stay open, unless the step has given a verdict. A failure may have other causes than HNS.
function Step([string] $Title, [string[]] $Answers, [scriptblock] $Work) {
    Write-Host "== $Title"
    try {
        & $Work
    } catch {
        Write-Host "This step failed: $_"
        foreach ($name in $Answers) {
            if (-not $verdicts.ContainsKey($name)) { Set-Verdict $name 'open' "the step failed: $_" }
        }
    }
}

# Joins words to a command line.
function Join-Words([string[]] $Words) {
    ($Words | ForEach-Object { if ($_ -match '\s') { "`"$_`"" } else { $_ } }) -join ' '
}

# Runs localnet-win and writes its output and log to files. Returns both.
function Invoke-Localnet([string] $Name, [string[]] $Arguments) {
    $log = Join-Path $Folder "$Name.log"
    $out = Join-Path $Folder "$Name.out"
    $env:RUST_LOG = 'info,localnet_win=debug'
    $process = Start-Process $Program -ArgumentList (Join-Words $Arguments) -NoNewWindow -Wait -PassThru -RedirectStandardError $log -RedirectStandardOutput $out
    if ($process.ExitCode -ne 0) {
        Get-Content $log | Write-Host
        throw "$Name failed with exit code $($process.ExitCode): see $log"
    }
    Get-Content $out, $log
}

# Returns the number of calls that changed HNS, according to the log of a sync.
function Get-Calls([string[]] $Lines) {
    $written = @($Lines | Select-String 'HNS written.* calls=(\d+)')
    if ($written.Count -eq 0) { throw 'the log does not say how often HNS was written' }
    ($written | ForEach-Object { [int] $_.Matches[0].Groups[1].Value } | Measure-Object -Sum).Sum
}

# Opens a connection to the ClusterIP.
function Connect-ClusterIP {
    $client = [System.Net.Sockets.TcpClient]::new()
    if (-not $client.ConnectAsync($ClusterIP, $Port).Wait(2000)) {
        $client.Dispose()
        throw 'no answer within 2 seconds'
    }
    $client
}

# Sends an HTTP request on a connection, and fails if nothing comes back.
function Test-Answer([System.Net.Sockets.TcpClient] $Client) {
    $stream = $Client.GetStream()
    $stream.ReadTimeout = 5000
    $request = [System.Text.Encoding]::ASCII.GetBytes("GET / HTTP/1.0`r`nHost: $ClusterIP`r`n`r`n")
    $stream.Write($request, 0, $request.Length)
    if ($stream.Read([byte[]]::new(1), 0, 1) -ne 1) { throw 'the connection ended without an answer' }
}

# Opens 20 connections, and fails if one of them gets no answer.
function Test-ClusterIP {
    foreach ($number in 1..20) {
        try {
            $client = Connect-ClusterIP
            try { Test-Answer $client } finally { $client.Dispose() }
        } catch { throw "connection $number of 20: $_" }
    }
}

# Starts and stops a program as a service. Runs $Work while the service runs.
function Test-Service([string] $Name, [string] $Path, [string[]] $Arguments, [scriptblock] $Work) {
    New-Service -Name $Name -BinaryPathName ("`"$Path`" " + (Join-Words $Arguments)) -StartupType Manual | Out-Null
    try {
        Start-Service $Name
        (Get-Service $Name).WaitForStatus('Running', [TimeSpan]::FromSeconds(30))
        & $Work
        Stop-Service $Name
        (Get-Service $Name).WaitForStatus('Stopped', [TimeSpan]::FromSeconds(30))
    } finally {
        Stop-Service $Name -Force -ErrorAction SilentlyContinue
        sc.exe delete $Name | Out-Null
    }
}

Step 'System' @() {
    Get-ComputerInfo -Property OsName, OsVersion, OsBuildNumber | Format-List | Out-String | Tee-Object (Join-Path $Folder 'system.txt') | Write-Host
    hnsdiag list networks | Tee-Object (Join-Path $Folder 'networks.txt') | Write-Host
}
Step 'Test HNS with addresses reserved for documentation' @() {
    try {
        Invoke-Localnet 'check' (@('check') + $network) | Out-Null
    } finally {
        foreach ($line in Get-Content (Join-Path $Folder 'check.out')) {
            Write-Host $line
            if ($line -notmatch '^(yes|no ): (.*)$') { continue }
            $verdict, $text = $Matches[1].Trim(), $Matches[2]
            foreach ($name in @($questions.Keys | Where-Object { $text.StartsWith($questions[$_]) })) {
                Set-Verdict $name $verdict ($text.Substring($questions[$name].Length).Trim())
            }
        }
    }
}
Step 'Plan' @('documents') {
    Invoke-Localnet 'plan' (@('--once', '--dry-run') + $brain) | Out-Null
    $plan = Get-Content (Join-Path $Folder 'plan.out') -Raw | ConvertFrom-Json
    Write-Host "$($plan.LoadBalancers.Count) load balancers, $($plan.Endpoints.Count) endpoints, $($plan.Skipped.Count) diagnostics"
    $plan.Skipped | ForEach-Object { Write-Host "$_" }
    if ($plan.LoadBalancers.Count -eq 0) { Set-Verdict 'documents' 'open' 'the plan has no load balancers: create a Service' }
}
Step 'HNS accepts the plan' @('documents', 'restart') {
    $lines = Invoke-Localnet 'first' (@('--once') + $brain)
    Invoke-Localnet 'hns' (@('inspect') + $network) | Out-Null
    $refused = @($lines | Where-Object { $_ -match 'Hcn(Create|Modify)\w+: ' })
    $refused | Write-Host
    if ($refused.Count -gt 0) {
        Set-Verdict 'documents' 'no' "$($refused.Count) refusals, the first one: $($refused[0])"
    } elseif (-not $verdicts.ContainsKey('documents')) {
        Set-Verdict 'documents' 'yes' "$(Get-Calls $lines) calls"
    }
}
Step 'List the objects of HNS' @() {
    hnsdiag list loadbalancers -d | Set-Content (Join-Path $Folder 'loadbalancers.txt')
    hnsdiag list endpoints -d | Set-Content (Join-Path $Folder 'endpoints.txt')
}
Step 'A second process finds the plan in HNS' @('restart') {
    $calls = Get-Calls (Invoke-Localnet 'second' (@('--once') + $brain))
    $verdict = if ($calls -eq 0) { 'yes' } else { 'no' }
    Set-Verdict 'restart' $verdict "$calls calls"
}
if ($ClusterIP) {
    Step "Packets: http://$ClusterIP`:$Port answers this node 20 times" @('packets') {
        try {
            Test-ClusterIP
            Set-Verdict 'packets' 'yes' 'from the node; please test in the same way from a pod, and from outside to a NodePort'
        } catch { Set-Verdict 'packets' 'no' "$_" }
    }
    Step 'Packets on an overlay network' @() {
        $hns = Get-Content (Join-Path $Folder 'hns.out') -Raw | ConvertFrom-Json
        $type = ($hns.Networks.PSObject.Properties.Value | Where-Object { $_.Name -eq $NetworkName }).Type
        if ($type -eq 'Overlay') {
            $packets = $verdicts['packets']
            Set-Verdict 'overlay' $packets.Verdict $packets.Evidence
        } else {
            Set-Verdict 'overlay' 'open' "the network has the type $type"
        }
    }
    Step 'Direct server return, and a connection during the change' @('dsr', 'connections') {
        if ($verdicts['packets'].Verdict -ne 'yes') { throw 'the ClusterIP does not answer without direct server return' }
        $client = Connect-ClusterIP
        try {
            $calls = Get-Calls (Invoke-Localnet 'dsr' (@('--once', '--enable-dsr') + $brain))
            if ($calls -eq 0) {
                Set-Verdict 'dsr' 'open' 'this HNS has no direct server return'
                Set-Verdict 'connections' 'open' 'this HNS has no direct server return, so nothing was replaced'
                return
            }
            try {
                Test-Answer $client
                Set-Verdict 'connections' 'yes' "$calls calls"
            } catch { Set-Verdict 'connections' 'no' "$_" }
            try {
                Test-ClusterIP
                Set-Verdict 'dsr' 'yes' 'from the node'
            } catch { Set-Verdict 'dsr' 'no' "$_" }
        } finally {
            $client.Dispose()
            Invoke-Localnet 'back' (@('--once') + $brain) | Out-Null
        }
    }
}
Step 'localnet-win as a service' @('service') {
    $arguments = @('--windows-service', '--log-file', (Join-Path $Folder 'service.log')) + $brain
    Test-Service 'localnet-win-test' $Program $arguments { Write-Host 'running' }
    Set-Verdict 'service' 'yes' ''
}
if (Test-Path $BrainProgram) {
    Step 'localnet-brain as a service' @('brain-service') {
        $objects = Join-Path $Folder 'objects'
        New-Item -ItemType Directory -Force $objects | Out-Null
        $address = (Get-NetIPConfiguration | Where-Object { $_.IPv4DefaultGateway }).IPv4Address.IPAddress | Select-Object -First 1
        @('apiVersion: v1', 'kind: Node', 'metadata: {name: test}', "status: {addresses: [{type: InternalIP, address: $address}]}") |
            Set-Content (Join-Path $objects 'node.yaml')
        $pipe = 'npipe:////./pipe/localnet-test'
        # The ports differ from those of the node's own brain.
        $arguments = @('--windows-service', '--log-file', (Join-Path $Folder 'brain.log'), '--node-name', 'test', '--source', "file:$objects",
            '--listen', $pipe, '--history-file', (Join-Path $Folder 'history'),
            '--healthz-bind-address', '127.0.0.1:10356', '--metrics-bind-address', '127.0.0.1:10349')
        # A dry run, because the state of this brain has no Services.
        Test-Service 'localnet-brain-test' $BrainProgram $arguments {
            Invoke-Localnet 'pipe' (@('--once', '--dry-run', '--api', $pipe) + $network) | Out-Null
        }
        Set-Verdict 'brain-service' 'yes' ''
    }
}
if (-not $env:CONTAINER_SANDBOX_MOUNT_POINT) {
    Set-Verdict 'host-process' 'open' 'run this script in a HostProcess container'
} elseif ($verdicts.ContainsKey('restart')) {
    Set-Verdict 'host-process' ($verdicts['restart'].Verdict) $env:CONTAINER_SANDBOX_MOUNT_POINT
}
if ($Cleanup) {
    Step 'Cleanup' @() { Invoke-Localnet 'cleanup' (@('cleanup') + $network) | Write-Host }
}

Write-Host '== Verdicts'
$report = foreach ($name in $questions.Keys) {
    $given = $verdicts[$name]
    if (-not $given) { $given = [pscustomobject]@{ Verdict = 'open'; Evidence = 'not tested: see the parameters of this script and the steps above' } }
    $evidence = if ($given.Evidence) { " ($($given.Evidence))" } else { '' }
    '{0,-4}: {1}: {2}{3}' -f $given.Verdict, $name, $questions[$name], $evidence
}
$report | Tee-Object (Join-Path $Folder 'verdicts.txt') | Write-Host
Write-Host "Logs and listings: $Folder"
