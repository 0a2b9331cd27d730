"""What does Spark ask of `format("txlog")`?

Spark makes a data source from its options three times, each in a Python process of its own beside the driver: to learn
the schema, to plan a read, to begin a write. An instance therefore holds its options and nothing else; what it does
with them is in `reader` and `writer`, imported where they are used: the process that looks data sources up needs
neither txlog nor pyarrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyspark_txlog.metadata_tables import MetadataReader
    from pyspark_txlog.reader import TxlogReader
    from pyspark_txlog.stream_reader import TxlogStreamReader
    from pyspark_txlog.stream_writer import TxlogStreamWriter
    from pyspark_txlog.writer import TxlogWriter


class TxlogDataSource(DataSource):
    """`format("txlog")`: a store's topics as DataFrames. The options are described in `pyspark_txlog.options`."""

    def __init__(self, options: dict[str, str]) -> None:
        """Raises InvalidRequestError if this Spark is too old: here, since whatever one does with it begins here."""
        # Not at the top: the process that looks data sources up makes none.
        from pyspark_txlog.spark_version import check_spark

        check_spark()
        super().__init__(options)
        self._made_here = True

    @classmethod
    def name(cls) -> str:
        return "txlog"

    def schema(self) -> StructType:
        """The columns of the topics asked for, or those that the option `columns` names; or of a table of metadata."""
        from pyspark_txlog import options, reader

        options.refuse_catalog(self.options)
        if "metadata" in self.options:
            from pyspark_txlog import metadata_tables

            return metadata_tables.TABLES[options.parse_metadata_options(self.options).table].schema
        return reader.schema_of(options.parse_schema_options(self.options))

    def reader(self, schema: StructType) -> TxlogReader | MetadataReader:
        """A batch read; `schema` is the user's where one was given, and prunes."""
        from pyspark_txlog import reader

        if "metadata" in self.options:
            from pyspark_txlog import metadata_tables

            return metadata_tables.MetadataReader.begin(self.options, schema)
        return reader.TxlogReader(reader.parse_read_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> TxlogWriter:
        """A batch write: one staged transaction. It begins here, before any task runs."""
        from pyspark_txlog import writer

        return writer.TxlogWriter.begin(self.options, schema, overwrite=overwrite)

    def streamReader(self, schema: StructType) -> TxlogStreamReader:  # noqa: N802  Spark's name
        """A streaming read; `schema` is the user's where one was given, and prunes. Wrong options are told by its first call."""
        from pyspark_txlog import stream_reader

        return stream_reader.TxlogStreamReader(self.options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TxlogStreamWriter:  # noqa: N802  Spark's name
        """A streaming query's sink. Spark asks for one to begin each micro-batch, and again to commit or to abort it."""
        from pyspark_txlog.stream_writer import TxlogStreamWriter

        if self._made_here:
            return TxlogStreamWriter.begin(self.options, schema, overwrite=overwrite)
        return TxlogStreamWriter.settling(self.options, schema)

    def __getstate__(self) -> dict[str, object]:
        # Spark says nowhere what it wants a stream's writer for. To begin a batch it makes a data source from the options, in
        # the very process; to settle one it sends the instance that it keeps for the query.
        return {**self.__dict__, "_made_here": False}
