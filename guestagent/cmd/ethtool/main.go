//go:build linux

// Command ethtool shows a network interface's driver, statistics and channels, and sets its channels.
package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"

	"github.com/safchain/ethtool"
)

const usage = `usage: ethtool -i INTERFACE                              driver
       ethtool -S INTERFACE                              statistics
       ethtool -l INTERFACE                              channels
       ethtool -L INTERFACE rx|tx|other|combined N …     set channels`

func main() {
	err := run(os.Args[1:], os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "ethtool:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	if len(args) == 1 && (args[0] == "-h" || args[0] == "--help") {
		_, err := fmt.Fprintln(out, usage)
		return err
	}
	if len(args) < 2 || len(args) > 2 && args[0] != "-L" {
		return errors.New("bad usage\n" + usage)
	}
	command, ok := map[string]func(*ethtool.Ethtool, string, io.Writer) error{
		"-i": driver, "-S": statistics, "-l": channels,
		"-L": func(e *ethtool.Ethtool, name string, _ io.Writer) error { return setChannels(e, name, args[2:]) },
	}[args[0]]
	if !ok {
		return fmt.Errorf("%s: unknown option\n%s", args[0], usage)
	}
	e, err := ethtool.NewEthtool()
	if err != nil {
		return err
	}
	defer e.Close()
	if err := command(e, args[1], out); err != nil {
		return fmt.Errorf("%s: %w", args[1], err)
	}
	return nil
}

func driver(e *ethtool.Ethtool, name string, out io.Writer) error {
	d, err := e.DriverInfo(name)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "driver: %s\nversion: %s\nfirmware-version: %s\nbus-info: %s\n", d.Driver, d.Version, d.FwVersion, d.BusInfo)
	return err
}

func statistics(e *ethtool.Ethtool, name string, out io.Writer) error {
	s, err := e.Stats(name)
	if err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(s)) {
		if _, err := fmt.Fprintf(out, "%s: %d\n", key, s[key]); err != nil {
			return err
		}
	}
	return nil
}

func channels(e *ethtool.Ethtool, name string, out io.Writer) error {
	c, err := e.GetChannels(name)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "channels of %s, now and at most:\nrx: %d %d\ntx: %d %d\nother: %d %d\ncombined: %d %d\n", name,
		c.RxCount, c.MaxRx, c.TxCount, c.MaxTx, c.OtherCount, c.MaxOther, c.CombinedCount, c.MaxCombined)
	return err
}

func setChannels(e *ethtool.Ethtool, name string, args []string) error {
	c, err := e.GetChannels(name)
	if err != nil {
		return err
	}
	if err := change(&c, args); err != nil {
		return err
	}
	_, err = e.SetChannels(name, c)
	return err
}

// change sets the counts that args name.
func change(c *ethtool.Channels, args []string) error {
	if len(args) == 0 || len(args)%2 != 0 {
		return errors.New("pairs of a kind and a number are wanted\n" + usage)
	}
	counts := map[string]*uint32{"rx": &c.RxCount, "tx": &c.TxCount, "other": &c.OtherCount, "combined": &c.CombinedCount}
	for pair := range slices.Chunk(args, 2) {
		count := counts[pair[0]]
		if count == nil {
			return fmt.Errorf("%q is no kind of channel; there are rx, tx, other and combined", pair[0])
		}
		n, err := strconv.ParseUint(pair[1], 10, 32)
		if err != nil {
			return fmt.Errorf("%s: %q is not a number", pair[0], pair[1])
		}
		*count = uint32(n)
	}
	return nil
}
